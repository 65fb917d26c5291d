"""Word lists by which ``units`` classifies a line of a prompt: an instruction, a value, a label, a turn.

English only. In other languages each sentence counts as an instruction.
"""

from __future__ import annotations

# labels of a role's own text
ROLE_LABELS = frozenset("role duty duties persona backstory".split())
# headings of a role's own text
ROLE_HEADINGS = ROLE_LABELS | frozenset(
    """
    task tasks job goal goals mission objective objectives instruction instructions roles rule rules
    guideline guidelines policy policies step steps responsibilities workflow procedure do don't tools
    format output requirements important
    """.split()
)
# headings of values, even of values that instruct
VALUE_HEADINGS = frozenset(
    """
    memory memories remember known know profile user customer client about notes background facts
    history preferences information context
    """.split()
)
# labels of turns: a turn lasts up to the next label or the end of the paragraph
TURNS = frozenset(
    """
    question thought action observation input answer result user human assistant ai bot system context
    document passage query response example
    """.split()
)
ADDRESSES = frozenset(
    "you your you're yours must never always should shall don't won't cannot can't please".split()
)
# verbs that begin an instruction, in addition to the actions that name stages
VERBS = frozenset(
    """
    accept act add address adopt agree aim align allow append apply approach assess assign assume attach
    attempt avoid base be begin break bring build calculate call cancel capture care carry cite clarify
    clean clear close collect communicate complete compute conclude condense confirm consider consult
    contact continue copy count cover create deal define deliver describe design determine develop
    discard discuss display distinguish divide do document don't double elaborate emphasize enclose
    encourage end engage ensure enter estimate exclude expect express fall fetch fill finish flag focus
    follow frame gather get give go greet group handle hand highlight hold ignore illustrate imagine
    implement improve include incorporate indicate infer inform insert insist install introduce
    investigate invoke issue iterate join keep know lead learn leave let limit locate look lower
    maintain make map mark measure mention mind minimize mirror modify name note notify number offer
    omit only open order organize output overwrite pass pay perform place point prefer prepare present
    preserve prevent print proceed process produce propose protect prove provide put quote raise react
    rebuild recall record refer refrain refuse reject release rely remain remember remove rename repeat
    replace represent request require resolve respect respond restate restrict return reuse round save
    say schedule scan see send separate set share show sign simplify skip specify stand start state stay
    stick stop store strive structure submit suggest supply suppose switch take tailor tell think tidy
    touch track treat trim try turn understand update upload use verify wait walk warn weigh work wrap
    """.split()
)
PEOPLE = frozenset(
    """
    user user's users customer customer's customers client client's clients caller callers visitor
    visitors member members patient patients
    """.split()
)
THEY = frozenset("he she they his her their them".split())
TIMES = frozenset("today now currently".split())
DATES = frozenset("date time day current".split())
# verbs of statements about a person, named in an earlier sentence or before the verb
TELLS = frozenset("lives works likes prefers wants asked said wrote owns has had dislikes bought".split())
TELLS_OF_NAMED = TELLS | frozenset("is was uses needs speaks pays travels".split())
# capitalised words that begin a sentence and are not names
STARTERS = frozenset(
    """
    you your we our i if when where this that there it here what everything nothing each every one no
    the a an these those all output answer
    """.split()
)
# words that two sentences have in common by chance
FREQUENT = frozenset(
    """
    the a an and or of to in on at for with from by as is are be was were has have had do does did not
    no this that these those it its if when then else than so but you your we our i my they their he she
    his her who which what how one each every any all only even never always must should may can will
    would there into over per out up about before after first last same own say
    """.split()
)
