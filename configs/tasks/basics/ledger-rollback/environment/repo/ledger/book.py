"""A book of accounts and the journal of what moved between them."""

from ledger.accounts import Account, LedgerError


class Book:
    def __init__(self):
        self.accounts = {}
        self.journal = []

    def open(self, name, balance=0, overdraft=0):
        if name in self.accounts:
            raise LedgerError(f"account {name} exists")
        self.accounts[name] = Account(name, balance, overdraft)
        return self.accounts[name]

    def balance(self, name):
        return self.accounts[name].balance

    def total(self):
        return sum(account.balance for account in self.accounts.values())

    def transfer(self, sender, receiver, amount, memo=""):
        self.journal.append((sender, receiver, amount, memo))
        self.accounts[sender].withdraw(amount)
        self.accounts[receiver].deposit(amount)

    def transfer_all(self, transfers):
        """Each transfer is (sender, receiver, amount); raises LedgerError and changes nothing where one fails."""
        for sender, receiver, amount in transfers:
            self.transfer(sender, receiver, amount, memo="batch")
