"""What the category page shows."""

from shop.paging import paginate


def category(products, query):
    """The template's values for a category page; `query` holds the URL's parameters as text."""
    try:
        number = int(query.get("page", "1"))
    except ValueError:
        number = 1
    page = paginate(products, number)
    return {
        "names": [product["name"] for product in page.items],
        "label": f"page {page.number} of {page.pages}",
        "next": page.number + 1 if page.has_next else None,
        "previous": page.number - 1 if page.has_previous else None,
    }
