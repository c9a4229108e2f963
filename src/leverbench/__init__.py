"""leverbench: what each lever of an LLM serving engine is worth, measured and proven."""

__version__ = "0.1.0"
