// Package envoytypes links every type of Envoy's API, so that protobuf's registry of types contains
// them. To generate its lists of imports: go test ./bootstrap/envoytypes -update.
package envoytypes
