"""A quota policy in the console: as a form, in words, as two people have changed it, and tried before it is saved.

place          where the policy of a node is looked at and changed, and who may do either
form           from the message to the fields of the form and back; `grant_form` the same of a temporary grant
parts          what a policy says, part by part, and one person's changes on top of another's
words          how the choices of the form read
preview        recent traffic under the policy, told while the simulator is at it; `preview_view` what it has found
"""
