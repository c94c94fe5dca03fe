import sys

from grsgd.cli import main

sys.exit(main())
