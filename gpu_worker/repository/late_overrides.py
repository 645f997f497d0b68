"""Settings that override the late-interaction files of a model, and checks that they agree."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from gpu_worker.repository.late_interaction import CLASSIC_LENGTH, PUNCTUATION
from gpu_worker.repository.late_reading import LengthLimits
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
    """Overrides, named as the worker's settings; a field at its default leaves what the files say."""

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

    def changed(self) -> dict[str, Any]:
        """Values of the settings that are not at their default, by flag."""
        flags = {"--" + field.name.replace("_", "-"): field for field in fields(self)}
        values = {flag: getattr(self, field.name) for flag, field in flags.items()}
        return {flag: value for flag, value in values.items() if value != flags[flag].default}

    def applied(self, recipe: Recipe) -> Recipe:
        """Returns the recipe with the settings applied. Raises ModelRefused, naming the setting."""
        late, vectors, changed = recipe.late_interaction, recipe.multi_vector, self.changed()
        if not changed:
            return recipe
        if late is None or vectors is None:
            raise ModelRefused(f"{next(iter(changed))}: the model is no late-interaction model")
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

    def check(self, tokenizer: TokenizerFile, limits: LengthLimits) -> None:
        """Raises ModelRefused for settings that the tokenizer or the length limits do not allow."""
        for flag, length in (("--query-length", self.query_length), ("--document-length", self.document_length)):
            if length > limits.longest:
                raise ModelRefused(f"{flag} = {length}: {limits}")
        if self.skiplist not in LISTS:
            words = self.skiplist.split()
            ids = tokenizer.ids_of(words)
            unknown = [word for word in words if word not in ids]
            if unknown:
                raise ModelRefused(f"--skiplist = {self.skiplist!r}: the vocabulary has no token {unknown[0]!r}")

    def _expansion(self, late: LateInteractionRecipe) -> Expansion | None:
        expansion, parts = late.expansion, ("--expansion-length", "--expansion-token", "--attend-to-expansion")
        flags = {flag: value for flag, value in self.changed().items() if flag in ("--query-expansion", *parts)}
        strategy = expansion.strategy if expansion else QueryExpansion.NONE
        if self.query_expansion != "files":
            strategy = QueryExpansion[self.query_expansion.upper()]
        if strategy is QueryExpansion.NONE:
            for flag in (flag for flag in parts if flag in flags):
                raise ModelRefused(f"{flag} = {flags[flag]!r}: queries are not expanded, see --query-expansion")
            return None
        usual = expansion.length if expansion else self.query_length or late.query_length or CLASSIC_LENGTH
        attend = expansion.attend if expansion else False
        overridden = Expansion(
            strategy=strategy,
            length=self.expansion_length or usual,
            attend=attend if self.attend_to_expansion == "files" else self.attend_to_expansion == "yes",
            token=self.expansion_token or (expansion.token if expansion else None),
            source=", ".join(f"{flag} = {value!r}" for flag, value in flags.items())
            or (expansion.source if expansion else ""),
        )
        self._check_lengths(overridden, late)
        return overridden

    def _check_lengths(self, expansion: Expansion, late: LateInteractionRecipe) -> None:
        requested, length = self.query_length, expansion.length
        if requested and (requested < length or (requested > length and expansion.strategy is QueryExpansion.FIXED)):
            exactly = "exactly" if expansion.strategy is QueryExpansion.FIXED else "at least"
            raise ModelRefused(
                f"--query-length = {requested}: queries are expanded to {exactly} {length} tokens, "
                "see --expansion-length"
            )
        if late.query_length and not requested and late.query_length < length:
            raise ModelRefused(
                f"{expansion.source}: queries have at most {late.query_length} tokens, see --query-length"
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
