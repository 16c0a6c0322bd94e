"""Conversion from and to the models of other libraries: one declarative name map per family, for both directions."""

from mingyue.interop.families import FAMILIES, choose_family, from_hf_state, to_hf_state
from mingyue.interop.folder import load_hf_folder, save_hf_folder
from mingyue.interop.marian import from_marian, marian_config, to_marian
from mingyue.interop.rotary import halves_from_interleaved, interleaved_from_halves
from mingyue.interop.verify import Verification, verify_hf

__all__ = [
    "FAMILIES",
    "Verification",
    "choose_family",
    "from_hf_state",
    "from_marian",
    "halves_from_interleaved",
    "interleaved_from_halves",
    "load_hf_folder",
    "marian_config",
    "save_hf_folder",
    "to_hf_state",
    "to_marian",
    "verify_hf",
]
