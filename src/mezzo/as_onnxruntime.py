"""`python -m mezzo.as_onnxruntime PROGRAM`: a program in whose process `import onnxruntime` is answered by Mezzo."""

import sys

from .tools.ort.stand_in import as_onnxruntime, main

if __name__ == "__main__":
    main()
else:  # whoever imports it gets mz.as_onnxruntime, not a module of that name in its place
    sys.modules[__name__] = as_onnxruntime  # type: ignore[assignment]
