//! English: people and things to talk about, and tasks to help with. Mostly a table.

use super::super::Boundary;

const PEOPLE: [(&str, &str); 16] = [
    (
        "Isaac Newton",
        "Isaac Newton was an English physicist and mathematician who described motion and gravity.",
    ),
    (
        "Albert Einstein",
        "Albert Einstein was a German-born physicist who developed the theory of relativity.",
    ),
    ("Marie Curie", "Marie Curie was a scientist who studied radioactivity and won two Nobel Prizes."),
    (
        "Ada Lovelace",
        "Ada Lovelace was an English mathematician who wrote an early program for a computing machine.",
    ),
    ("William Shakespeare", "William Shakespeare was an English playwright who wrote Hamlet."),
    ("Ludwig van Beethoven", "Ludwig van Beethoven was a German composer who wrote nine symphonies."),
    ("Leonardo da Vinci", "Leonardo da Vinci was an Italian artist and inventor who painted the Mona Lisa."),
    ("Alan Turing", "Alan Turing was an English mathematician who laid foundations of computer science."),
    (
        "Nicolaus Copernicus",
        "Nicolaus Copernicus was an astronomer who argued that the Earth moves around the Sun.",
    ),
    ("Florence Nightingale", "Florence Nightingale was an English nurse who founded modern nursing."),
    ("Vincent van Gogh", "Vincent van Gogh was a Dutch painter who painted The Starry Night."),
    (
        "Charles Darwin",
        "Charles Darwin was an English naturalist who explained evolution by natural selection.",
    ),
    ("Zeus", "Zeus was the king of the gods in the myths of the Greeks."),
    ("Apollo", "Apollo was the god of music and of light in the myths of the Greeks."),
    ("Isis", "Isis was a goddess of ancient Egypt, the mother of Horus."),
    ("Odin", "Odin was the highest god in the Norse myths, who gave an eye for wisdom."),
];

/// What a god is the god of, and who: a sentence to learn may speak of a god too.
const GODS: [(&str, &str); 16] = [
    ("the sea in the Greek myths", "Poseidon is the Greek god of the sea."),
    ("the dead in Egypt", "Osiris was the Egyptian god of the dead."),
    ("the sun in Egypt", "Ra was the Egyptian god of the sun."),
    ("love in Greece", "Aphrodite was the Greek goddess of love."),
    ("hunting in Rome", "Diana was the Roman goddess of hunting."),
    ("war in the Greek myths", "Ares is the Greek god of war."),
    ("thieves and travellers", "Hermes looked after thieves and travellers in Greece."),
    ("mischief in the North", "Loki makes mischief in the Norse myths."),
    ("rain in Mexico", "Tlaloc was the rain god of the Aztecs."),
    ("dance in India", "Shiva is called the lord of dance in India."),
    ("luck in Rome", "Fortuna was the Roman goddess of luck."),
    ("the harvest in Greece", "Demeter was the Greek goddess of the harvest."),
    ("smiths in Rome", "Vulcan was the Roman god of fire and smiths."),
    ("doors and beginnings", "Janus, with two faces, was the Roman god of doors."),
    ("fertility in the North", "Freyr was the Norse god of harvest and fertility."),
    ("the moon in Rome", "Luna was the Roman goddess of the moon."),
];

const OF_GODS: [(&str, &str); 6] = [
    ("Who is the god of ", "?"),
    ("Which god or goddess stands for ", "?"),
    ("Is there a god of ", "?"),
    ("who was the god for ", ""),
    ("Tell me about the god of ", "."),
    ("I need the name of the god of ", "."),
];

const OF_PEOPLE: [(&str, &str); 7] = [
    ("Who was ", "?"),
    ("Tell me about ", "."),
    ("Who is ", "?"),
    ("Do you know who ", " was?"),
    ("Talk about ", "."),
    ("Describe ", " in one sentence."),
    ("Say something about ", "."),
];

/// Some are letters only, as a name can be, and the one to learn may have letters of them.
const THINGS: [(&str, &str); 24] = [
    ("DNA", "DNA is the molecule in which living things keep their plans."),
    ("GPS", "GPS tells where something is by signals of satellites."),
    ("FM radio", "FM radio sends sound as changes of a wave's frequency."),
    ("the FBI", "The FBI investigates federal crimes in the United States."),
    ("CDs", "CDs are discs that hold music or data."),
    ("comets", "Comets are lumps of ice and dust that travel around the Sun."),
    ("ghosts", "Ghosts are spirits of the dead in many stories, and nobody has proved that there are any."),
    ("submarines", "Submarines are ships that travel under water."),
    ("CPUs", "CPUs are the chips that carry out a computer's instructions."),
    ("the UN", "The UN is where nearly all countries of the world meet."),
    ("ATMs", "ATMs are machines that pay out money from a bank account."),
    ("satellites", "Satellites circle a planet, and many of ours carry messages or take pictures."),
    ("mermaids", "Mermaids are people of the sea in old stories, half human and half fish."),
    ("meteors", "Meteors are bits of rock that glow as they fall through the air."),
    ("time travel", "Time travel is a theme of many stories, and nobody has done it."),
    ("yetis", "Yetis are said to live in the snow of the Himalayas, and nobody has found one."),
    ("UV light", "UV light has shorter waves than the light we see, and it tans the skin."),
    ("robots", "Robots are machines that work by a program."),
    ("black holes", "Black holes are places whose gravity does not even let light out."),
    ("dragons", "Dragons are large lizards of old tales that fly and breathe fire."),
    ("IQ tests", "IQ tests measure how well someone solves certain puzzles."),
    ("balloons", "Balloons rise because what is in them is lighter than air."),
    ("crop circles", "Crop circles are patterns pressed into fields, most of them by people at night."),
    ("fog", "Fog is a cloud that touches the ground."),
];

const OF_THINGS: [(&str, &str); 6] = [
    ("Talk about ", "."),
    ("Tell me about ", "."),
    ("Say something about ", "."),
    ("Let's talk about ", "."),
    ("Speak about ", "."),
    ("What do you know about ", "?"),
];

/// What it is asked to help with: "you" and "help me" are words of the other question too.
const TASKS: [(&str, &str); 10] = [
    ("plan a party", "I am glad to help. How many guests will come?"),
    ("write a speech", "I am glad to help. What is the occasion?"),
    ("choose a present", "Of course. What does the person like?"),
    ("cook dinner", "Of course. What is in your kitchen?"),
    ("learn Spanish", "I am glad to help. Which words do you know already?"),
    ("repair my bike", "Of course. What is wrong with it?"),
    ("pack a suitcase", "I am glad to help. Where are you going?"),
    ("sort my photos", "I am glad to help. How many are there?"),
    ("prepare for a test", "Of course. What is the test about?"),
    ("find a flat", "Of course. Which part of town would you like?"),
];

const OF_TASKS: [(&str, &str); 7] = [
    ("Can you help me ", "?"),
    ("Could you help me ", "?"),
    ("Will you help me ", "?"),
    ("Help me ", "."),
    ("I need help to ", "."),
    ("Please help me ", "."),
    ("Would you ", " with me?"),
];

/// What it is asked to write, and what it writes: many speak of somebody, as an introduction does.
const TEXTS: [(&str, &str); 12] = [
    ("a sign that says the lift is broken", "Out of order. Please take the stairs."),
    ("a bio for Ken, a gardener who paints", "Ken is a gardener who paints in his free time."),
    ("a name tag for Nora from the bakery", "Nora, from the bakery"),
    ("a subject line for an email about parking", "Subject: Parking at the office"),
    ("a card for my aunt's birthday", "Happy birthday, dear aunt! May the year be kind to you."),
    ("a line about Leo, a runner from Rome", "Leo is a runner from Rome."),
    ("a note of thanks to my doctor", "Thank you for your care and your patience."),
    ("a toast for the wedding of two friends", "To two good friends: may you laugh together for ever."),
    ("a label for a jar of honey", "Honey from our own garden"),
    ("an introduction of Mia, our new cook", "This is Mia, our new cook."),
    ("two lines about my old bike", "My old bike has rust and squeaks, but it still knows every road."),
    ("a reply that says we cannot come", "Thank you for asking us, but we cannot come this time."),
];

const OF_TEXTS: [(&str, &str); 6] = [
    ("Write ", "."),
    ("Can you write ", "?"),
    ("I need ", "."),
    ("Please write ", "."),
    ("Could you make ", "?"),
    ("Help me with ", "."),
];

/// Each subject in every form, with what there is to say of it.
fn each(table: &'static [(&str, &str)], forms: &'static [(&str, &str)]) -> impl Iterator<Item = Boundary> {
    table.iter().map(|(name, reply)| {
        Boundary::new(forms.iter().map(|(a, b)| format!("{a}{name}{b}")), &[reply]).about(name)
    })
}

pub(super) fn boundaries() -> impl Iterator<Item = Boundary> {
    let known = each(&PEOPLE, &OF_PEOPLE).chain(each(&GODS, &OF_GODS)).chain(each(&THINGS, &OF_THINGS));
    known.chain(each(&TASKS, &OF_TASKS)).chain(each(&TEXTS, &OF_TEXTS))
}
