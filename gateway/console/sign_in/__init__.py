"""Who is signed in: proved once, then a session in a signed cookie, until it ends or is ended.

login          the pages that change who is signed in
login_limits   how often that can be tried
sessions       the cookie, and what it says
session_ends   sessions that were signed out of before they expired
forgery        that a form was sent from a page of ours
signing        keys derived from the pepper
"""
