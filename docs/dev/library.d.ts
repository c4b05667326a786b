// The types of the library, written by test/e2e/library.test.ts.

export type Message = {
    readonly role: 'system' | 'user';
    readonly content: string;
export interface Tool {
    readonly name: string;
    /** '' for none. */
    readonly description: string;
    /** Schema of the object of its arguments. */
    readonly parameters: JsonSchema;
}
export interface ToolCall {
    readonly id: string;
    readonly name: string;
    /** JSON, as the model wrote it. */
    readonly arguments: string;
}
export type ToolChoice = 'auto' | 'none' | 'required' | {
    readonly name: string;
export type ReplyPiece = {
    readonly type: 'reasoning' | 'text';
    readonly text: string;
export interface SessionInfo {
    readonly id: string;
    /** Grows with every change. */
    readonly version: number;
    /** The turn that the next request continues; 0 when there is none. */
    readonly head: number;
    /** Oldest first. Old turns are pruned; see docs/states.md. */
    readonly turns: readonly TurnInfo[];
    readonly createdAt: number;
    readonly updatedAt: number;
    readonly expiresAt: number | null;
    /** Bytes of all its states. */
    readonly bytes: number;
    /** A request is writing to it. */
    readonly isBusy: boolean;
    /** The note of the head turn; only when the session was asked for by id. */
    readonly note?: string | undefined;
}
export interface TurnInfo {
    readonly turn: number;
    /** The turn that it continued; 0 for the first. */
    readonly parent: number;
    /** Tokens of the conversation up to and with this turn. */
    readonly numTokens: number;
    /** Milliseconds since 1970. */
    readonly createdAt: number;
    readonly tier: StateTier;
    /** Whether it survives the end of the process. */
    readonly isSaved: boolean;
}
export type JsonSchema = boolean | {
    readonly [keyword: string]: unknown;
export interface EngineChoice extends RunnerChoice, StateChoice {
    /** Absent: one machine alone, which keeps its sessions in `dataDir`. */
    readonly cluster?: ClusterChoice | undefined;
    readonly vocab?: string | undefined;
    readonly maxWaiting?: number | undefined;
    /** Milliseconds of a step with prompts beside answers. */
    readonly itlTargetMs?: number | undefined;
    /** Prompt tokens of such a step. */
    readonly prefillChunk?: number | undefined;
    readonly maxPromptTokens?: number | undefined;
    readonly startStates?: readonly StartStateFile[] | undefined;
    /** Absent: none, of a model that was not made for them. */
    readonly embeddings?: EmbeddingsChoice | undefined;
    /** A file of EmbeddingRWKV's that scores the states of this model. */
    readonly reranker?: string | undefined;
    /** Absent: g1. */
    readonly toolTemplate?: ToolTemplate | undefined;
}
/** The numbers of sampling.ts; one that is left out changes nothing, but `topP`, which is 0.5 then. */
export interface GenerateOptions extends SamplingOptions {
    /** Same seed and prompt, same text, whatever else runs. */
    readonly seed?: number | bigint | undefined;
    /** Default 512. */
    readonly maxTokens?: number | undefined;
    /** Texts that end the answer; never part of it. */
    readonly stop?: readonly string[] | undefined;
    /** A name of `EngineChoice.startStates`. */
    readonly startState?: string | undefined;
    readonly signal?: AbortSignal | undefined;
    /** Told how many tokens each piece took. */
    readonly onTokens?: ((count: number) => void) | undefined;
}
export type SamplingOptions = {
    readonly [K in SamplingName]?: number | undefined;
};
/** What a chat may ask for beside the numbers of `GenerateOptions`; `startState` is for raw prompts. */
export interface ChatOptions extends Omit<GenerateOptions, 'startState' | 'onTokens'> {
    /** What the model may call. Not together with `schema`. */
    readonly tools?: readonly Tool[] | undefined;
    /** Default `auto`. */
    readonly toolChoice?: ToolChoice | undefined;
    /** The answer is JSON of this schema, held to it token by token. */
    readonly schema?: JsonSchema | undefined;
    /** The model thinks first (G1 models): pieces of type `reasoning`. Default false. */
    readonly think?: boolean | undefined;
    /** The conversation's name: its state is kept, and `messages` are only what is new. It begins with its first use. */
    readonly session?: string | undefined;
    /** With a session: the turn to go on from, the last when absent. Turn 0 is its beginning. */
    readonly from?: number | undefined;
    /** With a session: `conflict` unless it is at this version, as the reply before said it. */
    readonly ifVersion?: number | undefined;
}
export interface ChatReply {
    readonly text: string;
    /** '' where the model did not think. */
    readonly reasoning: string;
    readonly calls: readonly ToolCall[];
    /** `calls`: it ended, and calls tools; `length`: `maxTokens` was reached. */
    readonly reason: FinishReason | 'calls';
    readonly promptTokens: number;
    /** Those of the prompt that were not read, since a kept state had. */
    readonly cachedTokens: number;
    readonly completionTokens: number;
    /** The turn of the session that this answer became; null without a session. */
    readonly turn: number | null;
    /** That the session has with it. */
    readonly version: number | null;
    /** The turn that it continued, 0 for the beginning: after a crash the session may go on from an older one. */
    readonly continued: number | null;
}
/** Conversations by name. All throw `not_found` for one that is not there, but `list`. */
export interface Sessions {
    /** Most recently used first. */
    list(): Promise<readonly SessionInfo[]>;
    get(id: string): Promise<SessionInfo>;
    /** A new session that begins as `id` up to a turn, the last when absent. `conflict` if there is a `newId`. */
    fork(id: string, newId: string, turn?: number): Promise<SessionInfo>;
    /** Makes a turn the last; the others stay. */
    rewind(id: string, turn: number): Promise<SessionInfo>;
    /** The state of a turn as a file that `import` takes, here or on a server with the same model. */
    export(id: string, turn?: number): Promise<Uint8Array>;
    import(id: string, bytes: Uint8Array): Promise<SessionInfo>;
    delete(id: string): Promise<void>;
}
export interface Llm {
    readonly info: EngineInfo;
    readonly tokenizer: Tokenizer;
    /** The engine itself, for callers that want tokens, log-probabilities or several answers. */
    readonly client: EngineClient;
    readonly sessions: Sessions;
    /** Continues a text; yields pieces of whole characters as they come. Ending the loop, or `signal`, ends the work. */
    generate(prompt: string, options?: GenerateOptions): AsyncIterable<string>;
    /** Answers a conversation, or one question, piece by piece. */
    chat(messages: string | readonly Message[], options?: ChatOptions): AsyncIterable<ReplyPiece>;
    /** The same, whole. */
    answer(messages: string | readonly Message[], options?: ChatOptions): Promise<ChatReply>;
    /** A vector of length 1 for each text, for a model loaded with `embeddings: 'mean'` or `'last'`; else it throws. */
    embed(texts: readonly string[], signal?: AbortSignal): Promise<readonly Float32Array[]>;
    close(): Promise<void>;
}
/**
 * Loads a model into this process: a file, the name of a pulled one, `demo`, or an `EngineChoice` with device, weights,
 * slots and more. Throws SkeinError with what to do.
 */
export declare function load(choice: string | EngineChoice, options?: {
    readonly onProgress?: LoadProgress | undefined;
}): Promise<Llm>;
