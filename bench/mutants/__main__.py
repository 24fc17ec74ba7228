"""See bench.mutants.campaign. (Processes that it starts can import that, and not this.)"""

from bench.mutants.campaign import main

main()
