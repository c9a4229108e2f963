"""Errors that a user can act on: one message that names what, where and the cure."""


class LeverbenchError(Exception):
    """A mistake or a mishap that is told in one message, without a traceback.

    Args:
        what: What is wrong, as a sentence without a final full stop.
        where: The file, key or device concerned.
        cure: What the user can do about it.
    """

    def __init__(self, what: str, *, where: str | None = None, cure: str | None = None) -> None:
        self.what, self.where, self.cure = what, where, cure
        super().__init__(what, where, cure)

    def __str__(self) -> str:
        """Returns the message on one line: ``where: what. cure``."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}. {self.cure}" if self.cure else text
