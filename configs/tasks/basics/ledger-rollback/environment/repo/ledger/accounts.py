"""Accounts: balances in cents."""


class LedgerError(Exception):
    pass


class Account:
    def __init__(self, name, balance=0, overdraft=0):
        self.name = name
        self.balance = balance
        self.overdraft = overdraft

    def withdraw(self, amount):
        self.balance -= amount
        if self.balance < -self.overdraft:
            raise LedgerError(f"{self.name}: not enough money")

    def deposit(self, amount):
        self.balance += amount
