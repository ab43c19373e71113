"""`vllm-doctor serve`: the paste-in form and its API. Nothing that is sent to it is stored.

    request -> limits, Host and Origin (security) -> body in memory (bodies) -> a worker process (pool, worker) -> page (pages) or JSON

The event loop never looks into a body: it only counts bytes. Taking a body apart, unpacking, analysing and rendering happen in a worker
process that may not write files, has bounded memory, and is killed when its time is up.
"""
