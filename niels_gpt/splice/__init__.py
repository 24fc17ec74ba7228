"""Training on chosen documents at many positions of the context: span selection, quotas, and datasets."""

from niels_gpt.splice.dataset import MultiSpliceDocumentDataset, SpliceDocumentDataset, make_example, rank_indices
from niels_gpt.splice.spans import (
    edge_weights,
    quantile_indices,
    quotas,
    select_documents,
    training_subset,
    validation_grid,
)

__all__ = [
    "MultiSpliceDocumentDataset",
    "SpliceDocumentDataset",
    "edge_weights",
    "make_example",
    "quantile_indices",
    "quotas",
    "rank_indices",
    "select_documents",
    "training_subset",
    "validation_grid",
]
