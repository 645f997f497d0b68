"""Settings that go over what files say of late interaction, and what of them makes no sense together."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from gpu_worker.repository.late_interaction import CLASSIC_LENGTH, PUNCTUATION
from gpu_worker.repository.late_reading import Room
from gpu_worker.repository.recipe import Expansion, LateInteractionRecipe, Recipe
from gpu_worker.repository.tokenizer import TokenizerFile
from shared.errors import ModelRefused
from shared.vectors import QueryExpansion

Strategy = Literal["files", "none", "fixed", "min"]
Attend = Literal["files", "yes", "no"]
Sides = Literal["files", "queries", "documents", "both"]
Scores = Literal["files", "sum", "mean"]
LISTS = ("files", "none", "punctuation")


@dataclass(frozen=True, slots=True, kw_only=True)
class LateOverrides:
    """Named as the worker's settings; a field at its default leaves what the files say."""

    query_marker: str | None = None
    document_marker: str | None = None
    query_length: int = 0
    document_length: int = 0
    query_expansion: Strategy = "files"
    expansion_length: int = 0
    expansion_token: str = ""
    attend_to_expansion: Attend = "files"
    skiplist: str = "files"
    skiplist_for: Sides = "files"
    late_scores: Scores = "files"

    def given(self) -> dict[str, Any]:
        """Those that are set, by their flag."""
        flags = {"--" + each.name.replace("_", "-"): each for each in fields(self)}
        values = {flag: getattr(self, each.name) for flag, each in flags.items()}
        return {flag: value for flag, value in values.items() if value != flags[flag].default}

    def applied(self, recipe: Recipe) -> Recipe:
        """The recipe with what is set. Raises ModelRefused, naming the setting."""
        late, vectors, given = recipe.late_interaction, recipe.multi_vector, self.given()
        if not given:
            return recipe
        if late is None or vectors is None:
            raise ModelRefused(f"{next(iter(given))}: the model is no late-interaction model")
        markers = {"query": self.query_marker, "document": self.document_marker}
        chosen = {side: marker for side, marker in markers.items() if marker is not None}
        mean = vectors.mean if self.late_scores == "files" else self.late_scores == "mean"
        return replace(
            recipe,
            prompts=recipe.prompts | chosen,
            multi_vector=replace(vectors, mean=mean),
            late_interaction=replace(
                late,
                query_length=self.query_length or late.query_length,
                document_length=self.document_length or late.document_length,
                expansion=self._expansion(late),
                markers=late.markers | chosen,
                **self._skipped(late),
            ),
        )

    def check(self, tokenizer: TokenizerFile, room: Room) -> None:
        """Raises ModelRefused for what the model itself cannot do."""
        for flag, asked in (("--query-length", self.query_length), ("--document-length", self.document_length)):
            if asked > room.most:
                raise ModelRefused(f"{flag} = {asked}: {room}")
        if self.skiplist not in LISTS:
            words = self.skiplist.split()
            known = tokenizer.ids_of(words)
            unknown = [word for word in words if word not in known]
            if unknown:
                raise ModelRefused(f"--skiplist = {self.skiplist!r}: the vocabulary has no token {unknown[0]!r}")

    def _expansion(self, late: LateInteractionRecipe) -> Expansion | None:
        known, parts = late.expansion, ("--expansion-length", "--expansion-token", "--attend-to-expansion")
        told = {flag: value for flag, value in self.given().items() if flag in ("--query-expansion", *parts)}
        strategy = known.strategy if known else QueryExpansion.NONE
        if self.query_expansion != "files":
            strategy = QueryExpansion[self.query_expansion.upper()]
        if strategy is QueryExpansion.NONE:
            for flag in (flag for flag in parts if flag in told):
                raise ModelRefused(f"{flag} = {told[flag]!r}: queries are not expanded, see --query-expansion")
            return None
        usual = known.length if known else self.query_length or late.query_length or CLASSIC_LENGTH
        attend = known.attend if known else False
        made = Expansion(
            strategy=strategy,
            length=self.expansion_length or usual,
            attend=attend if self.attend_to_expansion == "files" else self.attend_to_expansion == "yes",
            token=self.expansion_token or (known.token if known else None),
            told_by=", ".join(f"{flag} = {value!r}" for flag, value in told.items())
            or (known.told_by if known else ""),
        )
        self._check_lengths(made, late)
        return made

    def _check_lengths(self, expansion: Expansion, late: LateInteractionRecipe) -> None:
        asked, length = self.query_length, expansion.length
        if asked and (asked < length or (asked > length and expansion.strategy is QueryExpansion.FIXED)):
            exactly = "exactly" if expansion.strategy is QueryExpansion.FIXED else "at least"
            raise ModelRefused(
                f"--query-length = {asked}: queries are expanded to {exactly} {length} tokens, see --expansion-length"
            )
        if late.query_length and not asked and late.query_length < length:
            raise ModelRefused(
                f"{expansion.told_by}: queries have at most {late.query_length} tokens, see --query-length"
            )

    def _skipped(self, late: LateInteractionRecipe) -> dict[str, Any]:
        lists = {"files": late.skiplist, "none": (), "punctuation": PUNCTUATION}
        skiplist = lists[self.skiplist] if self.skiplist in LISTS else tuple(self.skiplist.split())
        skipped: dict[str, Any] = {"skiplist": skiplist}
        if self.skiplist_for != "files":
            if not skiplist:
                raise ModelRefused(f"--skiplist-for = {self.skiplist_for!r}: there is no skiplist, see --skiplist")
            skipped["skip_in_queries"] = self.skiplist_for != "documents"
            skipped["skip_in_documents"] = self.skiplist_for != "queries"
        return skipped


NO_OVERRIDES = LateOverrides()
