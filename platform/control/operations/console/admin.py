"""Django imports this module to find the console's pages. Each module in `pages` registers its pages."""

from importlib import import_module
from pkgutil import iter_modules

from control.operations.console import pages

for page in iter_modules(pages.__path__):
    import_module(f"{pages.__name__}.{page.name}")
