"""Whether workloads fit the model and the server; asked before machine time is spent."""

from collections.abc import Iterator
from pathlib import Path

from leverbench.campaign.model import FILE, Campaign, Engine
from leverbench.engines import api_of
from leverbench.errors import LeverbenchError
from leverbench.load.dataset import read_lines, require_lines, require_model
from leverbench.models.files import read_config


def unfit(campaign: Campaign, model: Path | None) -> Iterator[LeverbenchError]:
    """Yields what stands against a campaign's workloads, as far as no tokenizer is needed.

    Args:
        campaign: The resolved campaign.
        model: Folder of its model, which need not exist; None where it names none.
    """
    for name, workload in campaign.workloads.items():
        try:
            if workload.dataset == FILE:
                lines = read_lines(workload)
                require_lines(workload, len(lines), _requests(campaign))
                require_model(workload, lines, model)
            else:
                where = f"{campaign.file}: workloads.{name}"
                _require_room_for_all(campaign, model, workload.longest, where)
        except LeverbenchError as error:
            yield error


def require_fit(campaign: Campaign, model: Path | None) -> None:
    """Turns the files of a campaign into token ids, and checks their lengths.

    A model that the workflow has still to make is left for the jobs.

    Raises:
        LeverbenchError: A file does not fit.
    """
    files = [workload for workload in campaign.workloads.values() if workload.dataset == FILE]
    if not files or (campaign.prepare and not (model and (model / "config.json").exists())):
        return
    # Needs numpy, which no other check before a run does.
    from leverbench.load.prompts import load_prompts

    settings = next(iter(campaign.variants.values())).engine
    for workload in files:
        tokens, line = load_prompts(workload, model, settings).longest()
        _require_room_for_all(campaign, model, tokens, f"{workload.path}:{line}")


def require_room(
    settings: Engine, variant: str, model: Path | None, tokens: int, where: str
) -> None:
    """Raises `LeverbenchError` where a request is longer than a server takes, if that is known.

    Args:
        settings: The server's.
        variant: Name of its variant.
        model: Folder of its model, which need not exist.
        tokens: Length of the request, prompt and answer.
        where: What asks for it.
    """
    config = read_config(model) if model and (model / "config.json").exists() else {}
    limit = api_of(settings).longest_request(settings.args, config)
    if limit is not None and tokens > limit:
        raise LeverbenchError(
            f"a request of {tokens} tokens, prompt and answer, is longer than the {limit} that"
            f" the server of {variant} takes",
            where=where,
            cure="Ask for less, or give the server a longer context where the model allows it.",
        )


def _require_room_for_all(campaign: Campaign, model: Path | None, tokens: int, where: str) -> None:
    for variant in campaign.variants.values():
        require_room(variant.engine, variant.name, model, tokens, where)


def _requests(campaign: Campaign) -> int:
    """Returns the most requests that a window of the campaign is planned to have."""
    measured = (max(campaign.requests(c), 2 * c) for c in campaign.ladder)
    return max(*measured, *campaign.profile.concurrency, 0)
