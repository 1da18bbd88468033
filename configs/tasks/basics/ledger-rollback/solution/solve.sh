#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/ledger/accounts.py b/ledger/accounts.py
--- a/ledger/accounts.py
+++ b/ledger/accounts.py
@@ -12,9 +12,9 @@
         self.overdraft = overdraft
 
     def withdraw(self, amount):
+        if self.balance - amount < -self.overdraft:
+            raise LedgerError(f"{self.name}: not enough money")
         self.balance -= amount
-        if self.balance < -self.overdraft:
-            raise LedgerError(f"{self.name}: not enough money")
 
     def deposit(self, amount):
         self.balance += amount
diff --git a/ledger/book.py b/ledger/book.py
--- a/ledger/book.py
+++ b/ledger/book.py
@@ -21,11 +21,24 @@
         return sum(account.balance for account in self.accounts.values())
 
     def transfer(self, sender, receiver, amount, memo=""):
-        self.journal.append((sender, receiver, amount, memo))
+        for name in (sender, receiver):
+            if name not in self.accounts:
+                raise LedgerError(f"no account {name}")
+        if amount <= 0:
+            raise LedgerError(f"cannot transfer {amount}")
         self.accounts[sender].withdraw(amount)
         self.accounts[receiver].deposit(amount)
+        self.journal.append((sender, receiver, amount, memo))
 
     def transfer_all(self, transfers):
         """Each transfer is (sender, receiver, amount); raises LedgerError and changes nothing where one fails."""
-        for sender, receiver, amount in transfers:
-            self.transfer(sender, receiver, amount, memo="batch")
+        balances = {name: account.balance for name, account in self.accounts.items()}
+        entries = len(self.journal)
+        try:
+            for sender, receiver, amount in transfers:
+                self.transfer(sender, receiver, amount, memo="batch")
+        except BaseException:
+            for name, balance in balances.items():
+                self.accounts[name].balance = balance
+            del self.journal[entries:]
+            raise
PATCH
