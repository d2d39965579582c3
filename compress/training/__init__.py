"""Train models: fine-tune a teacher, pre-train an encoder, distil a student."""
