"""The programs to compare with, by name; each is imported only in its own process."""

PEERS = {
    "raw O_DIRECT": "benchmarks.peers.raw:RawDirect",
    "raw buffered": "benchmarks.peers.raw:RawBuffered",
    "flexstore": "benchmarks.peers.flexstore:FlexstoreDistcp",
    "flexstore safetensors": "benchmarks.peers.flexstore:FlexstoreSafetensors",
    "flexstore (paddle tensors)": "benchmarks.peers.flexstore:FlexstorePaddle",
    "safetensors": "benchmarks.peers.safetensors:Safetensors",
    "torch DCP": "benchmarks.peers.torch_dcp:TorchDcp",
    "paddle": "benchmarks.peers.paddle:Paddle",
    "orbax": "benchmarks.peers.orbax:Orbax",
}
