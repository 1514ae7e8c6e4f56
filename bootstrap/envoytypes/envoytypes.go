// Package envoytypes links every type of Envoy's API, so that the registry of protobuf has them.
// The lists of imports are generated: go test ./bootstrap/envoytypes -update.
package envoytypes
