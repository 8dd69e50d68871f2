"""Models as files for programs without torch: graphs for ONNX Runtime and OpenVINO, and what stands beside them.

How a layer is computed in such a graph belongs into `layers`, how fast the graph is into `measurements`.
"""
