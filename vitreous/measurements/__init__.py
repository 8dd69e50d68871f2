"""What a model costs on this machine: time of its passes, memory, the share of what the processor can do.

What is measured (`contender`), how it is run (`runners`, one file each), how it is timed (`rounds`), what it holds
(`memory`), on what (`machine`, `load`), and what comes out (`result`). Before the work: `plan` of inference,
`training_plan` of a run with `step_memory` of its steps. Multiply-adds are counted in `figures`; how
results are drawn and written belongs into `reports`.
"""
