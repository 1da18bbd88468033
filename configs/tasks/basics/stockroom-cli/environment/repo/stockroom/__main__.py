import sys

from stockroom.cli import main

main(sys.argv[1:])
