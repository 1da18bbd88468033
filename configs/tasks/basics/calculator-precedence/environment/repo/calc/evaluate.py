"""A calculator by recursive descent."""

from calc.lexer import CalcError, tokens


class _Parser:
    def __init__(self, text):
        self.tokens = tokens(text)
        self.at = 0

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self):
        token = self.peek()
        self.at += 1
        return token

    def sum(self):
        value = self.product()
        if self.peek() in ("+", "-"):
            if self.take() == "+":
                return value + self.sum()
            return value - self.sum()
        return value

    def product(self):
        value = self.power()
        while self.peek() in ("*", "/"):
            if self.take() == "*":
                value *= self.power()
            else:
                value /= self.power()
        return value

    def power(self):
        value = self.unary()
        while self.peek() == "^":
            self.take()
            value = value ** self.unary()
        return value

    def unary(self):
        if self.peek() == "-" and self.at == 0:
            self.take()
            return -self.unary()
        return self.atom()

    def atom(self):
        token = self.take()
        if token == "(":
            value = self.sum()
            self.take()
            return value
        if not isinstance(token, float):
            raise CalcError(f"unexpected {token!r}")
        return token


def evaluate(text):
    """The value of an expression of numbers, + - * / ^ and parentheses."""
    return _Parser(text).sum()
