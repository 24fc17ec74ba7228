"""Training on chosen documents at many positions of the context: span selection, quotas, and datasets."""

from niels_gpt.splice.dataset import MultiSpliceDocumentDataset as MultiSpliceDocumentDataset
from niels_gpt.splice.dataset import SpliceDocumentDataset as SpliceDocumentDataset
from niels_gpt.splice.dataset import make_example as make_example
from niels_gpt.splice.dataset import rank_indices as rank_indices
from niels_gpt.splice.spans import edge_weights as edge_weights
from niels_gpt.splice.spans import quantile_indices as quantile_indices
from niels_gpt.splice.spans import quotas as quotas
from niels_gpt.splice.spans import select_documents as select_documents
from niels_gpt.splice.spans import training_subset as training_subset
from niels_gpt.splice.spans import validation_grid as validation_grid
