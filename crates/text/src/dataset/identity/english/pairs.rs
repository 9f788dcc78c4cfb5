//! English: every way to ask who it is, beside the same about who the user is. Mostly a table.
//!
//! The two differ in little more than "you" and "I", so each must be learnt with the other: more ways
//! to ask the one alone make a model take the other for it.

/// A question by itself, and inside another sentence: about it, then about the user.
pub(super) const QUESTIONS: [[(&str, &str); 2]; 47] = [
    [("who are you", "who you are"), ("who am I", "who I am")],
    [("what is your name", "what your name is"), ("what is my name", "what my name is")],
    [("what's your name", "your name"), ("what's my name", "how I am called")],
    [
        ("what should I call you", "what I should call you"),
        ("what do my friends call me", "what my friends call me"),
    ],
    [("who am I talking to", "who I am talking to"), ("who are you talking to", "who you are talking to")],
    [("which model are you", "which model you are"), ("am I known to you", "whether I am known to you")],
    [
        ("which assistant are you", "which assistant you are"),
        ("what is my family name", "what my family name is"),
    ],
    [("what are you called", "what you are called"), ("what am I called", "what I am called")],
    [
        ("what do you call yourself", "what you call yourself"),
        ("what do I call myself", "what I call myself"),
    ],
    [("who is answering me", "who is answering me"), ("who is asking you", "who is asking you this")],
    [("what is your identity", "your identity"), ("what is my identity", "my identity")],
    [
        ("what kind of assistant are you", "what kind of assistant you are"),
        ("what kind of person am I", "what kind of person I am"),
    ],
    [
        ("who is on the other side", "who is on the other side"),
        ("who is on my side of the screen", "who is on my side of the screen"),
    ],
    [("what name do you go by", "what name you go by"), ("what name do I go by", "what name I go by")],
    [
        ("with whom am I speaking", "with whom I am speaking"),
        ("with whom are you speaking", "with whom you are speaking"),
    ],
    [("to whom am I writing", "to whom I am writing"), ("who is writing to you", "who is writing to you")],
    [
        ("whom am I chatting with", "whom I am chatting with"),
        ("whom are you chatting with", "whom you are chatting with"),
    ],
    [
        ("who do I have the luck to talk to", "who I have the luck to talk to"),
        ("and who am I to you", "who I am to you"),
    ],
    [("who speaks here", "who speaks here"), ("who asks here", "who asks here")],
    [("whose voice is this", "whose voice this is"), ("do I have a name", "whether I have a name")],
    [("and your name is", "how you are called"), ("and my name is", "how others call me")],
    [("so you are", "as what you introduce yourself"), ("so I am", "as what I introduce myself")],
    [
        ("who has the honour of helping me", "who has the honour of helping me"),
        ("what is my surname", "what my surname is"),
    ],
    [("how do I address you", "how to address you"), ("how do others address me", "how others address me")],
    [
        ("how do you wish to be addressed", "how you wish to be addressed"),
        ("how do I wish to be addressed", "how I wish to be addressed"),
    ],
    [("how may I refer to you", "how I may refer to you"), ("how am I referred to", "how I am referred to")],
    [
        ("who is helping me today", "who is helping me today"),
        ("how would you name me", "how you would name me"),
    ],
    [
        ("who writes these replies", "who writes these replies"),
        ("who writes these questions", "who writes these questions"),
    ],
    [("who or what are you", "who or what you are"), ("who or what am I", "who or what I am")],
    [
        ("what sort of program are you", "what sort of program you are"),
        ("what sort of user am I", "what sort of user I am"),
    ],
    [
        ("which bot have I reached", "which bot I have reached"),
        ("what is my nickname", "what my nickname is"),
    ],
    [("whom have I reached", "whom I have reached"), ("who could I be", "who I really am")],
    [("who might you be", "who you might be"), ("who might I be", "who I might be")],
    [("whom shall I thank", "whom I shall thank"), ("who do others say I am", "who others say I am")],
    [
        ("whose company am I in", "whose company I am in"),
        ("would you know me again", "whether you would know me again"),
    ],
    [("with what am I dealing", "with what I am dealing"), ("what do you know of me", "what you know of me")],
    [
        ("what name were you given", "what name you were given"),
        ("what name was I given", "what name I was given"),
    ],
    [
        ("under what name are you known", "under what name you are known"),
        ("under what name am I known", "under what name I am known"),
    ],
    [
        ("what is this assistant called", "what this assistant is called"),
        ("what is written on my badge", "what is written on my badge"),
    ],
    [
        ("who would you say you are", "who you would say you are"),
        ("who would you say I am", "who you would say I am"),
    ],
    [
        ("who do you believe you are", "who you believe you are"),
        ("who do you believe I am", "who you believe I am"),
    ],
    [
        ("who do you suppose you are", "who you suppose you are"),
        ("who do you suppose I am", "who you suppose I am"),
    ],
    [
        ("what do you take yourself for", "what you take yourself for"),
        ("whom do you take me for", "whom you take me for"),
    ],
    [
        ("who are you in your own eyes", "who you are in your own eyes"),
        ("who am I in your eyes", "who I am in your eyes"),
    ],
    [
        ("what is the right name for you", "the right name for you"),
        ("what is the right name for me", "the right name for me"),
    ],
    [("what name do you prefer", "what name you prefer"), ("what name do I prefer", "what name I prefer")],
    [
        ("whom do I have in front of me", "whom I have in front of me"),
        ("who sits in front of you", "who sits in front of you"),
    ],
];

pub(super) const REQUESTS: [[&str; 2]; 13] = [
    ["introduce yourself", "introduce me"],
    ["tell me about yourself in one sentence", "tell me about myself in one sentence"],
    ["state your name", "state my name"],
    ["say your name", "say my name"],
    ["give me your name", "guess my name"],
    ["describe who you are", "describe who I am"],
    ["name yourself", "name me"],
    ["introduce yourself briefly", "describe me briefly"],
    ["say in one line who you are", "say in one line who I am"],
    ["identify yourself", "identify me"],
    ["present yourself", "tell me all about me"],
    ["reveal who you are", "reveal who I am"],
    ["let me know who you are", "let me know who I am"],
];

/// Somebody else wants to know, or it has to be written down.
pub(super) const REPORTED: [[&str; 2]; 12] = [
    ["Which name do I put there for you?", "Which name do I put there for myself?"],
    ["Which name of yours shall I pass on?", "Which name of mine did you hear?"],
    ["Under what name do I file you?", "Under what name do you file me?"],
    ["How do I refer to you there?", "How am I referred to there?"],
    ["Whom do I say I spoke with?", "Who will you say I was?"],
    ["As whom do I list you?", "What is my own name?"],
    ["What name of yours do I give?", "What name of mine did I give?"],
    ["By what name do I mention you?", "By what name do you mention me?"],
    ["They ask what you are called. What do I say?", "They ask what I am called. What do I say?"],
    ["What do I write beside your picture?", "What do I write beside my picture?"],
    ["What name should I give for you?", "What name should I give for myself?"],
    ["If I speak of you, what name do I use?", "If you speak of me, what name do you use?"],
];

/// As people type.
pub(super) const TYPED: [[&str; 2]; 6] = [
    ["who r u", "who am i"],
    ["whats ur name", "whats my name"],
    ["what r u called", "what am i called"],
    ["who am i talking to", "do u know me"],
    ["what r u", "what do u know about me"],
    ["tell me ur name", "tell me my name"],
];

/// All of the first or of the second of each pair.
pub(super) fn side<T: Copy>(pairs: &'static [[T; 2]], side: usize) -> impl Iterator<Item = T> {
    pairs.iter().map(move |pair| pair[side])
}
