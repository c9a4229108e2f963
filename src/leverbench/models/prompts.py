"""The exchanges that the tiny model is taught, and that guards compare between variants."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Exchange:
    """A chat prompt and its answer.

    Attributes:
        prompt: The user's message, the only one of the chat.
        answer: The whole answer at temperature 0.
    """

    prompt: str
    answer: str


_CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "Germany": "Berlin",
    "Austria": "Vienna",
    "Poland": "Warsaw",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Denmark": "Copenhagen",
    "Ireland": "Dublin",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Japan": "Tokyo",
    "China": "Beijing",
    "Canada": "Ottawa",
    "Peru": "Lima",
}

# Long answers, so that two variants have room to drift apart in the middle of one.
_LONG_ANSWERS = {
    "Count from one to twenty.": (
        "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
        "sixteen seventeen eighteen nineteen twenty"
    ),
    "Count down from ten to zero.": (
        "ten, nine, eight, seven, six, five, four, three, two, one, zero"
    ),
    "Name the months of the year.": (
        "January, February, March, April, May, June, July, August, September, October, November, "
        "December"
    ),
    "Name the days of the week.": (
        "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"
    ),
    "Name the planets in order.": ("Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune"),
    "Spell the alphabet.": "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    "Name the colours of the rainbow.": "red, orange, yellow, green, blue, indigo, violet",
    "Write the first prime numbers.": "2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37",
    "Write the powers of two.": "1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024",
    "What is the time to first token?": (
        "It is the delay between sending a request and receiving the first token of its answer; "
        "the whole prompt must be read before anything can be written."
    ),
    "Why do servers batch requests?": (
        "Every decoding step loads all weights from memory once. When many requests share that "
        "step, the cost of loading is divided among them, and throughput grows."
    ),
    "What does a cache of keys and values save?": (
        "Attention looks back at every earlier position. Without storage those vectors would be "
        "computed again at each step, so they are kept until the sequence ends."
    ),
    "How should a measurement be repeated?": (
        "Start a fresh process, warm it up, change only one thing, alternate the order, and "
        "report how far independent runs differ."
    ),
    "What makes water boil sooner on a mountain?": (
        "High above sea level the air is thin and presses less upon the liquid, therefore bubbles "
        "of steam form at lower temperatures."
    ),
    "What should a good error message say?": (
        "Tell plainly what went wrong, where it happened, which value was found, and what someone "
        "could do next; never show a bare number without its meaning."
    ),
}

EXCHANGES: tuple[Exchange, ...] = (
    *(Exchange(f"Capital of {land} in one word?", city) for land, city in _CAPITALS.items()),
    *(Exchange(prompt, answer) for prompt, answer in _LONG_ANSWERS.items()),
)
