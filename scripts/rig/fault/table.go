package fault

// All returns the faults in the order of the table. Numbers refer to the list of facts about
// Envoy's hot restart.
func All() []Fault {
	return []Fault{
		// Epochs that cannot be started.
		{Name: "unparsable override", What: "bootstrap_override is no JSON",
			Inject: unparsableOverride},
		{Name: "unparsable configuration", What: "Envoy exits as it reads its file (4)",
			NoValidation: true, Inject: unparsableForEnvoy},
		{Name: "refused by validation",
			What:   "envoy --mode validate finds a route to a cluster that is not there",
			Inject: unknownClusterValidated},
		{Name: "unknown cluster",
			What: "the same without validation: the old epoch's admin closes (4, 5)", NoValidation: true,
			Inject: unknownCluster},
		{Name: "port in use", What: "what validation cannot see (4, 5)", Inject: portInUse},
		{Name: "killed while initialising", What: "SIGKILL to an epoch that is not live yet (4)",
			Inject: killedWhileInitialising},
		{Name: "never live", What: "an epoch that does not get live within live_timeout",
			Envoy: "live_timeout = \"4s\"\n", Inject: neverLive},
		{Name: "flag left set",
			What:   "the flag of a failed start is still set in the shared memory (4)",
			Inject: flagLeftSet},
		{Name: "shared memory gone", What: "hot restart cannot be had: side by side",
			Inject: sharedMemoryGone},
		// The epoch that takes over.
		{Name: "new killed",
			What: "SIGKILL 1 s after LIVE: the old one has closed its listeners (8)", Harm: HarmOutage,
			Inject: newKilled},
		{Name: "new terminated", What: "SIGTERM to the newest 1 s after LIVE ends both (9)",
			Harm: HarmOutage, Inject: newTerminated},
		// The replaced epoch.
		{Name: "parent killed", What: "SIGKILL 1 s after LIVE (7)", Harm: HarmCut,
			Inject: parentKilled},
		{Name: "parent terminated", What: "SIGTERM 1 s after LIVE (7)", Harm: HarmCut,
			Inject: parentTerminated},
		{Name: "parent killed at start", What: "SIGKILL while the next one initialises (7)",
			Envoy: "live_timeout = \"4s\"\n", Harm: HarmOutage, Inject: parentKilledAtStart},
		{Name: "parent stopped",
			What: "SIGSTOP in the overlap: its child's admin answers throughout, then it is " +
				"killed (15)", Inject: parentStopped},
		{Name: "parent stopped before",
			What:   "SIGSTOP before the new one starts: it is woken, or done without",
			Inject: parentStoppedBefore},
		{Name: "storm",
			What: "a reload each second: none starts before the one before the last has ended " +
				"(6)",
			Inject: storm},
		{Name: "quick storm", What: "a reload each 0.2 s, so that many wait at once (6)",
			Inject: quickStorm},
		// The only epoch.
		{Name: "Envoy killed", What: "SIGKILL", Harm: HarmOutage, Inject: envoyKilled},
		{Name: "Envoy terminated", What: "SIGTERM by somebody else", Harm: HarmOutage,
			Inject: envoyTerminated},
		// Keeper and agent.
		{Name: "keeper killed", What: "SIGKILL: Envoy ends with it, and no orphan stays",
			Harm: HarmOutage, Inject: keeperKilled},
		{Name: "agent killed", What: "SIGKILL: Envoy goes on, the next agent adopts (1)",
			Inject: agentKilled},
		{Name: "agent killed at start",
			What:  "SIGKILL while an epoch initialises that never gets live",
			Envoy: "live_timeout = \"4s\"\n", Inject: agentKilledAtStart},
		{Name: "agent killed, then Envoy", What: "the next agent is told how it ended",
			Harm: HarmOutage, Inject: agentThenEnvoyKilled},
		{Name: "agent and keeper killed", What: "over the shared memory and sockets that stay",
			Harm: HarmOutage, Inject: agentAndKeeperKilled},
		{Name: "agent killed at random",
			What:   "SIGKILL at random moments, during overlap too; every epoch is adopted",
			Inject: agentKilledAtRandom},
		{Name: "flood", What: "Envoy logs at debug level and nobody takes it (16)",
			Envoy: "log_level = \"debug\"\n", Inject: flood},
	}
}

// Find returns the named fault.
func Find(name string) (Fault, bool) {
	for _, fault := range All() {
		if fault.Name == name {
			return fault, true
		}
	}
	return Fault{}, false
}
