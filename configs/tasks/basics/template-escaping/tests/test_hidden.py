import pytest
from templates import TemplateError, render


def test_values_are_escaped():
    page = render("<p>{{ name }}</p>", {"name": "<script>alert('x') & \"y\"</script>"})
    assert "<script>" not in page
    assert page.startswith("<p>&lt;script&gt;") and "&amp;" in page and "&quot;" in page


def test_filtered_values_are_escaped_too():
    assert render("{{ name | upper }}", {"name": "<b>"}) == "&lt;B&gt;"


def test_raw_is_not_escaped():
    assert render("{{ body | raw }}", {"body": "<b>bold</b> & more"}) == "<b>bold</b> & more"


def test_values_are_not_expanded_again():
    context = {"name": "{{ secret }}", "secret": "hunter2"}
    assert "hunter2" not in render("Hello {{ name }}", context)
    assert render("{{ name | raw }}", context) == "{{ secret }}"
    assert render("{{ a }}{{ b }}", {"a": "{{ b", "b": " }}"}) == "{{ b }}"


def test_missing_names_give_nothing():
    assert render("[{{ user.nick }}]", {"user": {"name": "Ann"}}) == "[]"
    assert render("[{{ nobody }}][{{ user.name.first }}]", {"user": {"name": None}}) == "[][]"


def test_strict_names_the_whole_name():
    with pytest.raises(TemplateError, match=r"user\.nick\.short"):
        render("{{ user.nick.short }}", {"user": {}}, strict=True)
    assert render("{{ user.name }}", {"user": {"name": "Ann"}}, strict=True) == "Ann"


def test_unknown_filter():
    with pytest.raises(TemplateError, match="shout"):
        render("{{ a | shout }}", {"a": 1})


def test_everything_else():
    context = {"items": [1, 2, 3], "user": {"name": {"first": "Ann"}}, "zero": 0}
    assert render("{{items|length}} {{ user.name.first }} {{ zero }}", context) == "3 Ann 0"
    assert render("no tags { here }", {}) == "no tags { here }"


def test_backslashes_survive():
    assert render("{{ path }}", {"path": r"C:\new\1"}) == r"C:\new\1"
