from templates.engine import TemplateError, render

__all__ = ["TemplateError", "render"]
