from blog.slugs import slugify, unique_slug


def test_accents_become_plain_letters():
    assert slugify("Crème Brûlée") == "creme-brulee"
    assert slugify("El Niño año 2024") == "el-nino-ano-2024"


def test_already_decomposed_input():
    assert slugify("Cafe\u0301 au lait") == "cafe-au-lait"


def test_upper_case_accents():
    assert slugify("ÉCOLE d'Été") == "ecole-d-ete"


def test_ascii_is_unchanged():
    assert slugify("  Hello, World! (part 2) ") == "hello-world-part-2"


def test_no_ascii_form_is_left_out():
    assert slugify("北京 guide") == "guide"
    assert slugify("北京") == ""


def test_long_titles_are_cut_at_a_word():
    assert slugify("élan vital bergson", max_length=12) == "elan-vital"


def test_unique_slug_counts_up():
    assert unique_slug("Résumé", {"resume", "resume-2"}) == "resume-3"
    assert unique_slug("北京", set()) == "untitled"
