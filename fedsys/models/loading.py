"""Load the network of a finished run into a module."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


def load_network(
    module: nn.Module, variables: Mapping[str, Tensor], client: int | None = None
) -> None:
    """Load a trained network into a module that `model.build` returned.

    Args:
        module: the module that receives the parameters and buffers, as with
            `load_state_dict(strict=True)`.
        variables: `Result.variables`, or safetensors.torch.load_file("final.safetensors"). AUC
            problems name the network's entries net.NAME; entries of other variables are skipped.
        client: the client whose network is loaded, if every client has its own (bilevel problems).
    """
    state = module.state_dict()
    prefix = "" if state.keys() <= variables.keys() else "net."
    found = {name: variables[prefix + name] for name in state if prefix + name in variables}
    if client is not None:
        own = {name for name, value in found.items() if value.dim() > state[name].dim()}
        found = {name: v[client] if name in own else v for name, v in found.items()}
    module.load_state_dict(found, strict=True)
