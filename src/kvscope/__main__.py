"""python -m kvscope"""

from kvscope.cli.main import main

main()
