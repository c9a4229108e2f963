"""What the tiny model is made of: everything that its bytes depend on, but seed and threads."""

from dataclasses import asdict, dataclass

from leverbench.models.prompts import EXCHANGES, Exchange
from leverbench.records import digest

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Recipe:
    """A small Llama and how it is trained.

    Attributes:
        exchanges: The prompts and answers; one training step sees them all.
        chat_template: The Jinja template that turns a chat into text.
        vocabulary_size: Tokens of the byte-level BPE, its three special ones included.
        layers: Decoder layers.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the gated feed-forward part.
        attention_heads: Query heads of a layer.
        key_value_heads: Key and value heads of a layer.
        max_positions: Longest sequence, in tokens.
        learning_rate: AdamW's rate after the warm-up.
        warm_up_steps: Steps over which the rate rises from nearly 0.
        steps_per_check: Steps between two looks at whether to stop.
        max_steps: Steps after which training gives up.
        training_margin: Smallest lead of the right token's logit over the best other one, over
            all tokens of all answers, at which the model is saved and made to answer.
        answer_margin: Smallest lead that its own answers must then show in bfloat16 and in
            float32. The lead must exceed what a change of dtype or kernel moves a logit by, a
            few tenths, by far.
    """

    exchanges: tuple[Exchange, ...] = EXCHANGES
    chat_template: str = _CHAT_TEMPLATE
    vocabulary_size: int = 1024
    layers: int = 4
    hidden_size: int = 256
    intermediate_size: int = 688
    attention_heads: int = 4
    key_value_heads: int = 2
    max_positions: int = 4096
    learning_rate: float = 1e-3
    warm_up_steps: int = 10
    steps_per_check: int = 10
    max_steps: int = 300
    training_margin: float = 6.0
    answer_margin: float = 4.0

    def digest(self) -> str:
        """Returns the SHA-256 of all fields, as 64 hex digits."""
        return digest(asdict(self))


RECIPE = Recipe()
# Of the model that campaigns share; a campaign's own seed is for prompts and order.
SEED = 1
