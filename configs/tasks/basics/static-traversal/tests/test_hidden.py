import os

import pytest
from static.server import StaticFiles


@pytest.fixture
def site(tmp_path):
    root = tmp_path / "public"
    (root / "docs").mkdir(parents=True)
    (root / "index.html").write_text("home")
    (root / "docs" / "a b.txt").write_text("spaced")
    (root / "v1..2.txt").write_text("dots")
    (tmp_path / "public-backup").mkdir()
    (tmp_path / "public-backup" / "secret.txt").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    return StaticFiles(str(root)), root


def test_sibling_with_the_same_beginning(site):
    server, root = site
    assert server.respond("/../public-backup/secret.txt")[0] == 403


def test_parent(site):
    server, root = site
    assert server.respond("/../secret.txt")[0] == 403
    assert server.respond("/docs/../../secret.txt")[0] == 403


def test_encoded_traversal(site):
    server, root = site
    for path in ("/%2e%2e/secret.txt", "/..%2fsecret.txt", "/docs%2f%2e%2e%2f..%2fsecret.txt"):
        status, _, body = server.respond(path)
        assert status == 403 and b"secret" not in body


def test_absolute_path_is_inside(site):
    server, root = site
    assert server.respond(f"/{root.parent}/secret.txt")[0] in (403, 404)


def test_links_that_lead_out(site):
    server, root = site
    os.symlink(root.parent / "secret.txt", root / "link.txt")
    os.symlink(root.parent / "public-backup", root / "folder")
    assert server.respond("/link.txt")[0] == 403
    assert server.respond("/folder/secret.txt")[0] == 403


def test_links_that_stay_inside(site):
    server, root = site
    os.symlink(root / "index.html", root / "home.html")
    assert server.respond("/home.html") == (200, "text/html", b"home")


def test_root_that_is_a_link(site, tmp_path):
    server, root = site
    os.symlink(root, tmp_path / "www")
    assert StaticFiles(str(tmp_path / "www")).respond("/index.html")[0] == 200


def test_encoded_names(site):
    server, root = site
    assert server.respond("/docs/a%20b.txt?x=1") == (200, "text/plain", b"spaced")


def test_two_dots_in_a_name(site):
    server, root = site
    assert server.respond("/v1..2.txt")[2] == b"dots"


def test_missing(site):
    server, root = site
    assert server.respond("/nothing.txt")[0] == 404
    assert server.respond("/docs/../nothing.css")[0] == 404


def test_folders(site):
    server, root = site
    assert server.respond("/") == (200, "text/html", b"home")
    assert server.respond("/docs")[0] == 404
    assert server.respond("/..")[0] == 403
