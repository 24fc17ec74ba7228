"""Tokenizers: bytes (v0) or a SentencePiece vocabulary (v1), with the same four chat tokens."""

from niels_gpt.tokenizer.tokenizers import SentencePieceTokenizer, decode, encode, load_tokenizer
from niels_gpt.tokenizer.vocabulary import SPECIAL_TOKENS

__all__ = ["SPECIAL_TOKENS", "SentencePieceTokenizer", "decode", "encode", "load_tokenizer"]
