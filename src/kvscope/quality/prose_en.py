"""English filler: sentences of everyday life without a name, a trade or a digit."""

from random import Random

_WHO = (
    "a neighbour", "the older sister", "a tired visitor", "the youngest cousin", "a stranger", "my aunt",
    "the quiet guest", "an old woman", "a tall boy", "the landlady", "the choir", "the twins", "my grandmother",
    "a passer-by", "the new tenant", "a schoolgirl", "the whole family", "an uncle", "the man next door",
    "a woman in grey", "the children", "somebody", "the widow", "a friend of ours", "the cousin from the hills",
)  # fmt: skip
# Also what sentences are made of that are to be copied.
THING = (
    "a basket of pears", "a folded map", "the green umbrella", "a wooden chair", "a jar of buttons",
    "the kitchen clock", "a coil of rope", "a bundle of candles", "the heavy curtain", "a pair of gloves",
    "an empty birdcage", "the copper kettle", "a roll of paper", "the garden bench", "a broken lamp", "a wool blanket",
    "the picture frame", "a tin of biscuits", "the long ladder", "a paper lantern", "the blue teapot",
    "a sack of chestnuts", "an old calendar", "the walking stick", "a bowl of plums", "the spare key", "a straw hat",
    "the door handle", "a bunch of tulips", "the leather suitcase",
)  # fmt: skip
_PLACE = (
    "behind the chapel", "under the stairs", "near the old well", "by the harbour wall", "at the edge of the wood",
    "in the upper room", "beside the canal", "on the north slope", "in the back yard", "at the foot of the tower",
    "below the bridge", "in the corner of the hall", "along the stone path", "between the two sheds", "on the balcony",
    "at the end of the lane", "next to the pond", "in the attic", "across the square", "under the lime tree",
    "beyond the railway line", "in the front garden", "at the crossing", "inside the barn", "opposite the library",
)  # fmt: skip
_WHEN = (
    "in early spring", "before breakfast", "on a windy evening", "after the rain", "late in the summer",
    "towards midnight", "on the first cold day", "during the holidays", "one grey afternoon", "at sunset",
    "in the last week of autumn", "just after lunch", "when the bells rang", "while the others slept",
    "long before dawn", "as the fog lifted", "in the middle of winter", "on the way home",
)  # fmt: skip
_DID = (
    "left", "found", "hid", "forgot", "noticed", "cleaned", "mended", "dropped", "lost", "placed", "looked for",
    "admired", "packed", "unwrapped", "covered", "borrowed", "put down", "picked up",
)  # fmt: skip
_SCENE = (
    "the grass was still wet", "nobody spoke for a while", "the light grew softer", "a dog barked twice",
    "the wind turned to the west", "the windows stood open", "smoke rose from the roofs", "the road lay empty",
    "the leaves had begun to fall", "a cart rolled past slowly", "the water was clear and cold",
    "the swallows flew low", "it smelled of fresh paint", "the snow lay deep", "music came from far away",
    "the shutters creaked", "the moon was hidden", "the air was warm and dry", "the clock had stopped",
    "a cat slept in the sun", "the gate would not close", "the stones were slippery", "the fire had gone out",
    "the sky cleared at last", "the apples were almost ripe",
)  # fmt: skip
_THOUGHT = (
    "the walk had been longer than expected", "such evenings are rare", "the house felt smaller than before",
    "the weather would hold", "it was better to wait", "nothing had changed since last year",
    "the old way was the best", "everything has its season", "there was no reason to hurry",
    "the garden needed more water", "the soup had too much salt", "a little rest would do no harm",
)  # fmt: skip
_SAID = ("said that", "was sure that", "thought that", "wrote that", "complained that", "agreed that", "admitted that")


def english_sentence(random: Random) -> str:
    """One sentence, with a capital and a full stop."""
    pick = random.choice
    (who, other), thing, place = random.sample(_WHO, 2), pick(THING), pick(_PLACE)
    when, did, scene, said = pick(_WHEN), pick(_DID), pick(_SCENE), pick(_SAID)
    forms = (
        f"{who} {did} {thing} {place} {when}",
        f"{when}, {who} {did} {thing} {place}",
        f"{place}, {scene}, and {who} {did} {thing}",
        f"{when}, {scene} {place}",
        f"{who} {said} {pick(_THOUGHT)}, although {scene}",
        f"{scene} {when}, so {who} {did} {thing}",
        f"while {who} {did} {thing}, {other} waited {place}",
        f"{who} {said} {thing} was still {place} {when}",
        f"because {scene}, {who} {did} {thing} {when}",
        f"{other} had {thing} {place} until {who} came {when}",
    )
    sentence = pick(forms)
    return f"{sentence[0].upper()}{sentence[1:]}."
