package fault

// All returns all faults in the order of their runs.
func All() []Fault {
	return []Fault{
		// Faults of epochs that cannot start.
		{Name: "unparsable override", What: "bootstrap_override is no JSON",
			Inject: unparsableOverride},
		{Name: "unparsable configuration", What: "Envoy exits as it reads its file",
			NoValidation: true, Inject: unparsableForEnvoy},
		{Name: "refused by validation",
			What:   "envoy --mode validate finds a route to a cluster that is not there",
			Inject: unknownClusterValidated},
		{Name: "unknown cluster",
			What: "the same without validation: the old epoch's admin closes", NoValidation: true,
			Inject: unknownCluster},
		{Name: "port in use", What: "an error that validation cannot detect", Inject: portInUse},
		{Name: "killed while initialising", What: "SIGKILL to an epoch that is not live yet",
			Inject: killedWhileInitialising},
		{Name: "never live", What: "an epoch that does not become live within live_timeout",
			Envoy: "live_timeout = \"4s\"\n", Inject: neverLive},
		{Name: "flag left set",
			What:   "the flag of a failed start is still set in the shared memory",
			Inject: flagLeftSet},
		{Name: "shared memory gone",
			What:   "hot restart is impossible: the new epoch starts side by side",
			Inject: sharedMemoryGone},
		// Faults of the new epoch during a reload.
		{Name: "new killed",
			What: "SIGKILL 1 s after LIVE: the old one has closed its listeners", Harm: HarmOutage,
			Inject: newKilled},
		{Name: "new terminated", What: "SIGTERM to the newest 1 s after LIVE ends both",
			Harm: HarmOutage, Inject: newTerminated},
		// Faults of the old epoch (the parent) during a reload.
		{Name: "parent killed", What: "SIGKILL 1 s after LIVE", Harm: HarmConnectionsCut,
			Inject: parentKilled},
		{Name: "parent terminated", What: "SIGTERM 1 s after LIVE", Harm: HarmConnectionsCut,
			Inject: parentTerminated},
		{Name: "parent killed at start", What: "SIGKILL while the next one initialises",
			Envoy: "live_timeout = \"4s\"\n", Harm: HarmOutage, Inject: parentKilledAtStart},
		{Name: "parent stopped",
			What: "SIGSTOP in the overlap: its child's admin answers throughout, then it is " +
				"killed", Inject: parentStopped},
		{Name: "parent stopped before",
			What:   "SIGSTOP before the new one starts: it is resumed or replaced",
			Inject: parentStoppedBefore},
		{Name: "storm",
			What:   "a reload each second: an epoch starts only after the last but one has ended",
			Inject: storm},
		{Name: "quick storm", What: "a reload every 0.2 s, so that many wait at once",
			Inject: quickStorm},
		// Faults of the only epoch.
		{Name: "Envoy killed", What: "SIGKILL", Harm: HarmOutage, Inject: envoyKilled},
		{Name: "Envoy terminated", What: "SIGTERM by somebody else", Harm: HarmOutage,
			Inject: envoyTerminated},
		// Faults of keeper and agent.
		{Name: "keeper killed", What: "SIGKILL: Envoy ends with it, and no orphan stays",
			Harm: HarmOutage, Inject: keeperKilled},
		{Name: "agent killed", What: "SIGKILL: Envoy continues, the next agent adopts it",
			Inject: agentKilled},
		{Name: "agent killed at start",
			What:  "SIGKILL while an epoch initialises that never becomes live",
			Envoy: "live_timeout = \"4s\"\n", Inject: agentKilledAtStart},
		{Name: "agent killed, then Envoy", What: "the next agent learns how Envoy ended",
			Harm: HarmOutage, Inject: agentThenEnvoyKilled},
		{Name: "agent and keeper killed",
			What: "both start again despite the shared memory and sockets that remain",
			Harm: HarmOutage, Inject: agentAndKeeperKilled},
		{Name: "agent killed at random",
			What:   "SIGKILL at random moments, during overlap too; every epoch is adopted",
			Inject: agentKilledAtRandom},
		{Name: "flood", What: "Envoy logs at debug level and nobody reads the lines",
			Envoy: "log_level = \"debug\"\n", Inject: flood},
	}
}

// Find returns the fault with a name.
func Find(name string) (Fault, bool) {
	for _, fault := range All() {
		if fault.Name == name {
			return fault, true
		}
	}
	return Fault{}, false
}
