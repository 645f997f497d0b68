"""What the package shows, and what importing it costs."""

import ast
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import selvage
from selvage import connection, errors
from selvage.messages.card import card_from_pb
from selvage.results import LateInteraction, Listwise, ModelCard, QueryRoute, TokenPooling
from selvage.v1 import model_pb2
from shared.server.options import channel_options

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "client" / "selvage"


def test_everything_shown_is_there() -> None:
    """The same for people, for type checkers and at run time."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert set(seen) == set(selvage.__all__)
    for name in selvage.__all__:
        assert getattr(selvage, name).__module__ == seen[name]
    with pytest.raises(AttributeError, match="nothing"):
        _ = selvage.nothing
    assert set(selvage.__all__) <= set(dir(selvage))


def test_all_errors_are_shown() -> None:
    """Whoever catches one imports it from the package."""
    classes = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert {kind.__name__ for kind in classes} <= set(selvage.__all__)


FOREIGN = ["shared", "frontend_service", "scipy", "tqdm", "grpc_status", "structlog", "pydantic"]


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("selvage.v1.embedding_pb2", ["selvage.client", "selvage.errors", "numpy", "grpc"]),
        ("selvage.client", FOREIGN),
        ("selvage.clusters", [*FOREIGN, "torch", "pyarrow"]),
    ],
)
def test_it_imports_no_more_than_it_needs(imported: str, absent: list[str]) -> None:
    """Servers get the generated code alone, callers the client alone."""
    program = f"import sys, {imported}; sys.exit(str(sorted(set({absent}) & set(sys.modules)) or ''))"
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}
    ended = subprocess.run([sys.executable, "-c", program], env=path, capture_output=True, text=True, check=False)
    assert ended.stderr.strip() == ""


def test_a_build_holds_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    """`pip install ./client` builds in the checkout, where modules of an older one may lie in build/."""
    client = tmp_path / "client"
    shutil.copytree(PACKAGE.parent, client, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    built = client / "build" / "lib" / "selvage"
    built.mkdir(parents=True)
    (built / "removed.py").touch()
    command = [sys.executable, "-c", "import setuptools; setuptools.setup()", "--quiet", "build_py"]
    subprocess.run(command, cwd=client, check=True, capture_output=True)
    assert (built / "errors.py").exists()
    assert not (built / "removed.py").exists()


def test_its_channels_are_like_those_of_the_services() -> None:
    """Each option of theirs, with the same value."""
    assert set(channel_options()) <= set(connection.CHANNEL_OPTIONS)


CARDS = [
    (ModelCard, model_pb2.ModelCard),
    (LateInteraction, model_pb2.LateInteraction),
    (QueryRoute, model_pb2.QueryRoute),
    (Listwise, model_pb2.Listwise),
    (TokenPooling, model_pb2.TokenPooling),
]


@pytest.mark.parametrize(("shown", "message"), CARDS)
def test_a_card_has_every_field_of_the_contract(shown: type, message: type) -> None:
    """In its order."""
    descriptors = message.DESCRIPTOR.fields  # type: ignore[attr-defined]
    assert [field.name for field in fields(shown)] == [field.name for field in descriptors]


def test_a_card_is_read_in_words() -> None:
    """0 of an enum says that there is none."""
    card = card_from_pb(
        model_pb2.ModelCard(
            id="m",
            outputs=[1, 3],
            methods=[2],
            default_method=2,
            prompts={"query": "q: "},
            late_interaction=model_pb2.LateInteraction(query_expansion=1, skiplist=[5]),
            query_route=model_pb2.QueryRoute(default_input_type=2, max_tokens=9),  # type: ignore[arg-type]
            token_pooling=model_pb2.TokenPooling(pool_factor=1.5, protected_tokens=1),
        )
    )
    assert (card.outputs, card.methods) == (("dense", "multi_vector"), ("late_interaction",))
    assert card.default_method == "late_interaction"
    assert (card.activation, card.prompts) == ("", {"query": "q: "})
    assert card.late_interaction is not None
    assert (card.late_interaction.query_expansion, card.late_interaction.skiplist) == ("fixed", (5,))
    assert card.query_route is not None
    assert (card.query_route.default_input_type, card.query_route.max_tokens) == ("document", 9)
    assert card.token_pooling == TokenPooling(pool_factor=1.5, protected_tokens=1, normalize=False)
    empty = card_from_pb(model_pb2.ModelCard())
    assert empty.late_interaction is empty.query_route is empty.token_pooling is None
