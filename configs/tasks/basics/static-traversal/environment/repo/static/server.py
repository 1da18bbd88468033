"""Answers requests for files below one folder. No sockets here: the caller brings the path."""

import os

from static.types import content_type


class StaticFiles:
    def __init__(self, root):
        self.root = os.path.abspath(root)

    def locate(self, url_path):
        """The file that a URL path names, whether it exists or not; PermissionError outside the root."""
        path = os.path.abspath(os.path.join(self.root, url_path.split("?")[0].lstrip("/")))
        if not path.startswith(self.root):
            raise PermissionError(url_path)
        return path

    def respond(self, url_path):
        """(status, content type, body)"""
        try:
            path = self.locate(url_path)
        except PermissionError:
            return 403, "text/plain", b"forbidden"
        try:
            with open(path, "rb") as file:
                return 200, content_type(path), file.read()
        except OSError:
            return 404, "text/plain", b"not found"
