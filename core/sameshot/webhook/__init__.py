"""The admission webhook: pods that ask for it are armed while they are created, whatever made them.

    review.py        one AdmissionReview in, its answer out; pure, and never an answer that keeps a pod from starting
    patch.py         the difference of two JSON objects as a JSON Patch
    certificates.py  a certificate in files, taken anew when it is rotated
    desk.py          what is asked and answered over HTTP: bounded in size and time
    room.py          how much of what others sent is held at once
    connections.py   which connections are kept
    server.py        all of it over HTTPS, from start to end

What arming is stands in `sameshot.arm`; nothing here knows a volume or a variable.
"""
