"""Model versions, aliases and lineage on plain object storage."""

from pipelines.registry.config import PublishConfig
from pipelines.registry.contamination import Verdict, seen_test_rows
from pipelines.registry.lineage import DataFile, GitState, Lineage, lineage_of
from pipelines.registry.names import Ref, parse_ref
from pipelines.registry.policy import Promotion, promote_by
from pipelines.registry.records import AliasEntry, Artifact, ModelVersion
from pipelines.registry.registry import ModelSummary, Registry
from pipelines.registry.verifying import Verification

__all__ = [
    "AliasEntry",
    "Artifact",
    "DataFile",
    "GitState",
    "Lineage",
    "ModelSummary",
    "ModelVersion",
    "Promotion",
    "PublishConfig",
    "Ref",
    "Registry",
    "Verdict",
    "Verification",
    "lineage_of",
    "parse_ref",
    "promote_by",
    "seen_test_rows",
]
