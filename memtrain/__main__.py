"Run the commands as `python -m memtrain`."
import sys

from memtrain.cli import main

sys.exit(main())
