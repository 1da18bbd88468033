import pytest
from web import App, Response, RouteError


@pytest.fixture
def app():
    result = App()

    @result.route("/users/<id>")
    def user(id):
        return f"user {id!r}"

    @result.route("/users/me")
    def me():
        return "me"

    @result.route("/items/<int:id>")
    def item(id):
        return f"item {id!r}"

    @result.route("/items/<int:id>", methods=["PUT", "DELETE"])
    def change(id):
        return Response(204)

    @result.route("/files/<path:rest>")
    def files(rest):
        return f"file {rest!r}"

    @result.route("/<kind>/new")
    def new(kind):
        return f"new {kind}"

    @result.route("/files/<name>/info")
    def info(name):
        return f"info {name!r}"

    @result.route("/")
    def home():
        return "home"

    return result


def test_fixed_wins_over_parameter(app):
    assert app.handle("GET", "/users/me").body == "me"
    assert app.handle("GET", "/users/you").body == "user 'you'"


def test_earlier_fixed_part_wins(app):
    assert app.handle("GET", "/users/new").body == "user 'new'"
    assert app.handle("GET", "/cars/new").body == "new cars"


def test_int(app):
    assert app.handle("GET", "/items/42").body == "item 42"
    for path in ("/items/x", "/items/4.2", "/items/-1", "/items/"):
        assert app.handle("GET", path).status == 404


def test_path(app):
    assert app.handle("GET", "/files/a/b/c.txt").body == "file 'a/b/c.txt'"
    assert app.handle("GET", "/files/a").body == "file 'a'"
    assert app.handle("GET", "/files/").status == 404


def test_more_specific_than_path(app):
    assert app.handle("GET", "/files/a/info").body == "info 'a'"
    assert app.handle("GET", "/files/a/b/info").body == "file 'a/b/info'"


def test_method_not_allowed(app):
    response = app.handle("POST", "/items/42")
    assert response.status == 405
    assert set(response.headers["Allow"].split(", ")) - {"HEAD"} == {"DELETE", "GET", "PUT"}
    assert response.headers["Allow"].split(", ") == sorted(response.headers["Allow"].split(", "))
    assert app.handle("POST", "/nowhere/at/all").status == 404


def test_other_methods_of_the_same_path(app):
    assert app.handle("PUT", "/items/42").status == 204
    assert app.handle("GET", "/items/42").status == 200


def test_head(app):
    response = app.handle("HEAD", "/users/me")
    assert (response.status, response.body) == (200, "")
    assert app.handle("HEAD", "/nothing/here/x").status == 404


def test_decoding(app):
    assert app.handle("GET", "/users/Zo%C3%AB%20A").body == "user 'Zoë A'"
    assert app.handle("GET", "/users/a%2Fb").body == "user 'a/b'"


def test_query_is_no_part_of_the_path(app):
    assert app.handle("GET", "/users/me?x=/y").body == "me"
    assert app.handle("GET", "/?x=1").body == "home"


def test_url_for(app):
    assert app.url_for("user", id="a/b c") == "/users/a%2Fb%20c"
    assert app.url_for("item", id=7) == "/items/7"
    assert app.url_for("files", rest="a b/c") == "/files/a%20b/c"
    assert app.url_for("home") == "/"


def test_url_for_goes_back(app):
    assert app.handle("GET", app.url_for("user", id="50% / é")).body == "user '50% / é'"


def test_url_for_refuses(app):
    for name, parameters in (("user", {}), ("user", {"id": 1, "page": 2}), ("nothing", {})):
        with pytest.raises(RouteError):
            app.url_for(name, **parameters)
