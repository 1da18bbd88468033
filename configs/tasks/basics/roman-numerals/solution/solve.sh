#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/numerals/roman.py b/numerals/roman.py
--- a/numerals/roman.py
+++ b/numerals/roman.py
@@ -26,5 +26,9 @@
     for letter in letters:
         if letter not in _VALUES:
             raise ValueError(f"not a Roman numeral: {text!r}")
-        total += _VALUES[letter]
+    for letter, following in zip(letters, letters[1:] + letters[-1:]):
+        value = _VALUES[letter]
+        total += value if value >= _VALUES[following] else -value
+    if not 1 <= total <= 3999 or to_roman(total) != letters:
+        raise ValueError(f"not a Roman numeral: {text!r}")
     return total
PATCH
