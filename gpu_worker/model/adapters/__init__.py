"""LoRA adapters: read from PEFT's files, merged into a model, or served beside each other over one."""
