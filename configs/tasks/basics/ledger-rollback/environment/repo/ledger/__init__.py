from ledger.book import Book, LedgerError

__all__ = ["Book", "LedgerError"]
