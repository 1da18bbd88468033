"""Settings files: `[section]` lines, `key = value` lines and `#` comments."""


class SettingsError(ValueError):
    def __init__(self, line, message):
        super().__init__(f"line {line}: {message}")
        self.line = line


def parse(text):
    """A dict of sections, each a dict of texts. Keys before the first section are in section ""."""
    result = {"": {}}
    current = result[""]
    for number, line in enumerate(text.splitlines()):
        line = line.split("#")[0].strip()
        if not line:
            continue
        if line.startswith("["):
            if not line.endswith("]"):
                raise SettingsError(number, "section without closing bracket")
            current = result[line[1:-1].strip()] = {}
            continue
        if "=" not in line:
            raise SettingsError(number, "neither a section nor a value")
        key, value = line.split("=")[:2]
        if not key.strip():
            raise SettingsError(number, "value without a key")
        current[key.strip()] = value.strip()
    return result
