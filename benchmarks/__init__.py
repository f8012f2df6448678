"""What fedsys costs beside plain PyTorch, measured; see README.md."""
